"""The exercises' answers, kept out of the notebooks so that a reader does not see them before she has tried."""

import math
from typing import Any

from chapter01 import idle
from utils import checks, counts
from utils.chips import find as chip
from utils.models import find as shape


def check(exercise: str, answer: Any) -> None:
    """Print what there is to say about the answer to "loop-2", the second exercise of the notebook on the loop.

    Raises:
        KeyError: there is no such exercise.
    """
    checks.check(answer, **EXERCISES[exercise])


H100_RIDGE = 989.4 / 3.35  # FLOP/B: 16-bit arithmetic over bandwidth
EXACT = idle.exact(chip("H100 SXM"), "bf16", shape("Llama-3.1-70B"), context=500)
EXPECTED_TOKENS = sum(0.6**i for i in range(5))  # of a pass with four guesses, each right in 60 % of cases

EXERCISES = {
    "machine-1": {
        "expected": 400 / 50,
        "unit": "FLOP/B",
        "hints": {
            50 / 400: "Upside down: operations a second divided by bytes a second.",
            400 / 50 / 4: "The bandwidth is in bytes already.",
        },
    },
    "machine-2": {
        "expected": 7e9 * 2 / 120e9 * 1e3,
        "unit": "ms",
        "hints": {7e9 / 120e9 * 1e3: "Each parameter has 2 bytes.", 120 / 14: "That is tokens a second: turn it over."},
    },
    "machine-3": {
        "expected": "L40S",
        "hints": {
            **dict.fromkeys(("H100 SXM", "H100"), "It has the highest rates of the three. The ridge is their ratio."),
            **dict.fromkeys(("A100 80 GB SXM", "A100"), "312 TFLOP/s over 2.039 TB/s: the lowest ridge of the three."),
        },
    },
    "machine-4": {
        "expected": 60 * 4 / 2,
        "unit": "rows",
        "tolerance": 0,
        "hints": {
            60: "That is right for 2-byte numbers. A float32 has 4 bytes.",
            30: "Each row does 2 operations with every number of the matrix, and a number has 4 bytes.",
            240: "Each row does two operations with a number: it multiplies and it adds.",
        },
    },
    "loop-1": {
        "expected": 0.28 + 299 / 24,
        "unit": "s",
        "tolerance": 0.001,
        "hints": {
            0.28 + 300 / 24: "The first token is already there after 0.28 s: how many steps are left?",
            300 / 24: "The first token does not come from a step.",
        },
    },
    "loop-2": {
        "expected": sum(20 + i for i in range(100)),
        "unit": "tokens",
        "tolerance": 0,
        "hints": {
            119: "That is with the cache.",
            sum(21 + i for i in range(100)): "The first pass reads the prompt alone: 20 tokens.",
            12000: "The text is not 120 tokens long from the start.",
        },
    },
    "loop-3": {
        "expected": 2 / 0.6931472,
        "tolerance": 0.005,
        "hints": {
            0.6931472 / 2: "Upside down: a higher temperature brings them closer together.",
            2: "The ratio of two probabilities is exp(difference / temperature).",
            1 / 0.6931472: "The logits are 2 apart, not 1.",
        },
    },
    "loop-4": {
        "expected": sum(0.8**i for i in range(4)),
        "unit": "tokens",
        "tolerance": 0.005,
        "hints": {
            3.2: "That counts right guesses even behind a wrong one.",
            sum(
                0.8**i for i in range(1, 4)
            ): "The first token is always there: if the guess was wrong, the model's own.",
            sum(0.8**i for i in range(5)): "With four guesses a pass yields four tokens at most here.",
        },
    },
    "phases-1": {
        "expected": counts.matmul_intensity(64, 4096, 4096),
        "unit": "FLOP/B",
        "tolerance": 0.005,
        "hints": {
            64: "Input and output are bytes too, not only the weight.",
            counts.matmul_intensity(64, 4096, 4096) / 2: "A multiplication and an addition are two operations.",
            2 * counts.matmul_intensity(64, 4096, 4096): "Each number has two bytes.",
        },
    },
    "phases-2": {
        "expected": math.ceil(counts.crossing_rows(8192, 28672, H100_RIDGE)),
        "unit": "rows",
        "tolerance": 0,
        "hints": {
            309: "Nearly: 309 rows stay just below. Rows come whole, and the crossing lies a little further.",
            295: "That leaves out that inputs and outputs are moved too.",
            590: "One row has 2 FLOP for a 2-byte weight: 1 FLOP/B.",
        },
    },
    "phases-3": {
        "expected": 2 * 13.0e9 * 1000 / 312e12 + 99 * 2 * 13.0e9 / 2.0e12,
        "unit": "s",
        "tolerance": 0.005,
        "hints": {
            0.0833 + 100 * 0.013: "The prompt's pass yields the first token: how many are left?",
            99 * 2 * 13.0e9 / 2.0e12: "And the first token?",
            1100 * 2 * 13.0e9 / 2.0e12: "The prompt is read in one pass, not token by token.",
            2 * 13.0e9 * 1100 / 312e12: "The answer is written one token at a time: what binds those passes?",
        },
    },
    "phases-4": {
        "expected": "overhead",
        "hints": {
            "bandwidth": "How long does it take to read 100 MB at 3 TB/s?",
            "compute": "How many FLOP does one token need, at 2 for each weight?",
        },
    },
    "idle-1": {
        "expected": 4.8e12 / 140e9,
        "unit": "tokens a second",
        "tolerance": 0.005,
        "hints": {
            4.8e12 / 70e9: "Each parameter has two bytes.",
            140 / 4.8: "That is the time of a step, in milliseconds.",
        },
    },
    "idle-2": {
        "expected": 100 * 2 / (312 / 2.039),
        "unit": "%",
        "tolerance": 0.01,
        "hints": {
            100 / (312 / 2.039): "That is for two-byte weights: how many operations does each *byte* bring now?",
            100 - 200 / (312 / 2.039): "That is the idle share.",
        },
    },
    "idle-3": {
        "expected": math.ceil(EXACT.step_crosses_at_batch),
        "unit": "users",
        "tolerance": 0,
        "hints": {
            446: "Nearly: 446 users stay just below. Users come whole, and the crossing lies a little further.",
            H100_RIDGE: "That is where the matrix products cross. What do keys and values do to the step?",
            H100_RIDGE * 139e9 / (139e9 - H100_RIDGE * 500 * 327_680): (
                "Attention does arithmetic of its own: count it too."
            ),
        },
    },
    "idle-4": {
        "expected": 70,
        "unit": "users",
        "tolerance": 0,
        "hints": {
            69: "Nearly: with 69 you still lose a little.",
            71: "One user fewer is enough.",
            295: "So many would use the whole chip. You need not go so far.",
            69.65: "Users come in whole numbers, and one too few loses money.",
        },
    },
    "levers-1": {
        "expected": 60,
        "unit": "users",
        "tolerance": 0,
        "hints": {
            76: "The weights need room too.",
            60.98: "Users come whole, and the last one has to fit too.",
            68: "Weights have two bytes, not one.",
        },
    },
    "levers-2": {
        "expected": EXPECTED_TOKENS / 1.2,
        "unit": "times as fast",
        "tolerance": 0.01,
        "hints": {
            3.4 / 1.2: "A guess counts only if all guesses before it were right.",
            EXPECTED_TOKENS: "That is the tokens of a pass. What does the pass cost?",
            (EXPECTED_TOKENS - 1) / 1.2: "The model's own token counts too.",
        },
    },
    "levers-3": {
        "expected": 40,
        "unit": "%",
        "tolerance": 0.01,
        "hints": {
            71.4: "That is 1 / 1.4. A pass yields its own token in any case.",
            140: "That is the cost of the pass.",
        },
    },
    "levers-4": {
        "expected": math.ceil(H100_RIDGE / 2),
        "unit": "users",
        "tolerance": 0,
        "hints": {
            147: "Nearly: 147 users bring 294 operations a byte. Users come whole, and the ridge is at 295.",
            H100_RIDGE: "So many give FP8 its full gain. Each byte is a weight now: what does a user bring?",
        },
    },
    "room-1": {
        "expected": 100 * (1 - 0.5 / 15),
        "unit": "%",
        "tolerance": 0.001,
        "hints": {
            **dict.fromkeys((100 * 0.5 / 15, 3.3), "That is the share that is used."),
            100 * (1 - 1 / 15): "A float32 has 4 bytes and brings 2 operations: half of one for each byte.",
        },
    },
    "room-2": {
        "expected": 8,
        "unit": "times",
        "hints": {
            40: "That is the ratio of the arithmetic. What does one token wait for?",
            5: "That is the ratio of the ridges: B is idler, and faster all the same.",
            1 / 8: "Upside down.",
        },
    },
    "room-3": {
        "expected": 40,
        "unit": "%",
        "tolerance": 0.01,
        "hints": {
            97.5: "That is what the law foretells for the idle share. Compare what is used with it.",
            2.5: "That is what could be used at full bandwidth. What was used?",
            250: "Upside down.",
            60: "That is the share it did not reach.",
        },
    },
}
