"""How is a bound printed? With few digits, and rounded to its own side."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

__all__ = ["round_down", "round_up"]


def _rounded(value: float | Decimal, digits: int, direction: str) -> str:
    number = Decimal(value)  # exact
    if not number.is_finite() or number == 0:
        return str(value)
    step = Decimal(1).scaleb(number.adjusted() - digits + 1)
    number = number.quantize(step, rounding=direction)
    if -3 <= number.adjusted() < digits + 2:
        text, exponent = f"{number:f}", ""
    else:
        text, _, power = f"{number:.{digits - 1}E}".partition("E")
        exponent = f"e{int(power)}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text + exponent


def round_up(value: float | Decimal, digits: int = 5) -> str:
    """Returns the number printed with so many significant digits, never below its value.

    >>> round_up(1.82823694), round_up(1e-5), round_up(float("inf"))
    ('1.8283', '1.0001e-5', 'inf')
    """
    return _rounded(value, digits, ROUND_CEILING)


def round_down(value: float | Decimal, digits: int = 5) -> str:
    """Returns the number printed with so many significant digits, never above its value.

    >>> round_down(0.81359999)
    '0.81359'
    """
    return _rounded(value, digits, ROUND_FLOOR)
