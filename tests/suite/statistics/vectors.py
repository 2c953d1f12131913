"""Makes vectors.json: what SciPy and NumPy say of some samples, for scipy.rs to compare with.

    pip install numpy scipy && python tests/suite/statistics/vectors.py > tests/suite/statistics/vectors.json
"""

import json
import math

import numpy as np
import scipy
from scipy import stats

SAMPLES = {
    "three": [100.0, 101.3, 99.2],
    "four": [103.1, 104.0, 102.2, 103.3],
    "five": [14210.5, 14188.0, 14302.25, 14251.75, 14199.0],
    "two": [14150.0, 14155.5],
    "wide": [1.0, 2.0, 4.5, 9.0, 17.0, 40.0],
    "narrow": [25000.0, 25000.5, 24999.75],
    "ten": [980.0, 1003.0, 1011.5, 995.25, 1000.0, 1022.0, 960.5, 999.0, 1004.0, 1007.75],
    "fifteen": [5.0, 5.1, 4.9, 5.05, 4.7, 5.2, 5.01, 4.99, 5.11, 4.95, 5.3, 4.4, 5.06, 5.0, 4.98],
    "hundred": [100.0 + 3.0 * math.sin(1.7 * i) for i in range(100)],
}
CONFIDENCES = [0.95, 0.975, 0.99, 1 - 0.05 / 12]


def one(values):
    logs = np.log(values)
    mean, error = logs.mean(), stats.sem(logs)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=mean, scale=error)
    return {
        "values": values,
        "geometric_mean": float(stats.gmean(values)),
        "sd": float(np.std(values, ddof=1)),
        "t_interval": [math.exp(low), math.exp(high)],
        "quantiles": [[q, float(np.quantile(values, q))] for q in (0.0, 0.05, 0.5, 0.95, 1.0)],
        "deviation": 1.4826 * float(stats.median_abs_deviation(values)),
        "bootstrap_t": bootstrap_t(values) if len(values) >= 10 else None,
    }


def two(a, b):
    test = stats.ttest_ind(np.log(SAMPLES[a]), np.log(SAMPLES[b]), equal_var=False)
    bounds = [test.confidence_interval(c) for c in CONFIDENCES]
    return {
        "a": SAMPLES[a],
        "b": SAMPLES[b],
        "p": float(test.pvalue),
        "freedom": float(test.df),
        "intervals": [[c, math.exp(i.low), math.exp(i.high)] for c, i in zip(CONFIDENCES, bounds)],
    }


def bootstrap_t(values, resamples=1999, state=0x7470_7269_6D61_7421):
    """The documented algorithm, with NumPy; SciPy's bootstrap has no studentised kind."""
    mask = (1 << 64) - 1
    logs = np.sort(np.log(values))
    n = len(logs)

    def draw():
        nonlocal state
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) * n) >> 64

    studentised = []
    for _ in range(resamples):
        sample = logs[[draw() for _ in range(n)]]
        if sample.var(ddof=1) >= 1e-28:
            studentised.append((sample.mean() - logs.mean()) / stats.sem(sample))
    low, high = np.quantile(studentised, [0.025, 0.975])
    error = stats.sem(logs)
    return [math.exp(logs.mean() - high * error), math.exp(logs.mean() - low * error)]


PAIRS = [("three", "four"), ("four", "five"), ("five", "two"), ("wide", "three"), ("narrow", "two"), ("ten", "fifteen"), ("hundred", "three"), ("three", "hundred")]
P_VALUES = [[0.01, 0.04, 0.03, 0.005], [0.2], [0.5, 0.5, 0.001], [0.02, 0.02, 0.02]]


def holm(p):
    """SciPy has no Holm; written from Holm (1979) another way than in Rust: as the largest over all smaller ones."""
    return [min(1.0, max((sum(x >= q for x in p)) * q for q in p if q <= mine)) for mine in p]


print(json.dumps({
    "made_with": {"numpy": np.__version__, "scipy": scipy.__version__},
    "one": [one(v) for v in SAMPLES.values()],
    "two": [two(a, b) for a, b in PAIRS],
    "holm": [{"p": p, "adjusted": holm(p)} for p in P_VALUES],
}, indent=1))
