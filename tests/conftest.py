"""What several test files share."""

import pytest

import chapter01  # noqa: F401  (puts the course's own `utils` first, as every notebook does)
from utils.weights import load_embedded


@pytest.fixture(scope="session")
def embedded():
    """The embedded model and its tokenizer, loaded once."""
    return load_embedded()
