"""Errors that say nothing about a rewrite."""


def is_unavailable(error: BaseException) -> bool:
    """Whether an op has no float64 kernel, so that nothing can be said in float64."""
    if isinstance(error, NotImplementedError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "not implemented for 'Double'" in text or "not implemented for 'ComplexDouble'" in text
    )


def first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
