"""Chapter 1, the mechanics of token generation: one module a notebook, the experiment that it runs.

Importing this package puts the course's own folder first on the path, so that `import utils` finds the course's
instruments even where another package of that name is installed.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _claim_utils(root: Path) -> None:
    """Make `import utils` mean the folder beside this one.

    Raises:
        ImportError: another package called `utils` was imported before this one.
    """
    other = sys.modules.get("utils")
    where = getattr(other, "__file__", None) or next(iter(getattr(other, "__path__", [])), "an unknown place")
    if other is not None and root not in Path(where).resolve().parents:
        raise ImportError(
            f"another package called 'utils' is loaded, from {where}, where the course's own is needed: "
            "restart the kernel and run the notebook's cell of imports before anything else"
        )
    if str(root) in sys.path:
        sys.path.remove(str(root))
    sys.path.insert(0, str(root))


_claim_utils(ROOT)
