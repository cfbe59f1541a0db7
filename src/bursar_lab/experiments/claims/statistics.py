"""Analysis of variance and Tukey's test, as in the thesis's appendix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


def anova(rows: Sequence[Row], value: str, factors: Sequence[str]) -> list[dict[str, Any]]:
    """One line a factor: sum of squares, degrees of freedom, F and p (type II, main effects)."""
    import pandas
    import statsmodels.api as models
    from statsmodels.formula.api import ols

    frame = pandas.DataFrame(rows)
    formula = f"{value} ~ " + " + ".join(f"C({factor})" for factor in factors)
    table = models.stats.anova_lm(ols(formula, data=frame).fit(), typ=2)
    return [
        {
            "source": str(name).removeprefix("C(").removesuffix(")"),
            "sum_sq": float(line["sum_sq"]),
            "df": float(line["df"]),
            "F": _number(line["F"]),
            "p": _number(line["PR(>F)"]),
        }
        for name, line in table.iterrows()
    ]


def tukey(rows: Sequence[Row], value: str, factor: str) -> list[dict[str, Any]]:
    """Tukey's honestly significant differences at 95 %."""
    from statsmodels.stats.multicomp import pairwise_tukeyhsd

    found = pairwise_tukeyhsd([row[value] for row in rows], [str(row[factor]) for row in rows])
    return [
        {
            "one": str(one), "other": str(other), "difference": float(difference), "p": float(p),
            "lower": float(lower), "upper": float(upper), "significant": bool(significant),
        }
        for one, other, difference, p, lower, upper, significant in found.summary().data[1:]
    ]  # fmt: skip


def fit_line(x: Sequence[float], y: Sequence[float]) -> dict[str, float]:
    """Least squares: slope, intercept, r squared."""
    from scipy.stats import linregress

    found = linregress(x, y)
    return {
        "slope": float(found.slope),
        "intercept": float(found.intercept),
        "r2": float(found.rvalue) ** 2,
    }


def half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean, by Student's t."""
    from scipy.stats import sem, t

    return float(t.ppf(0.975, len(values) - 1) * sem(values))


def _number(value: Any) -> float | None:
    return None if value != value else float(value)
