"""What the package asks of its extension module."""

from os import PathLike

__all__ = ["ProgramError", "TraceError", "__version__", "check_program", "diagnose"]

__version__: str

class TraceError(ValueError): ...
class ProgramError(ValueError): ...

def diagnose(
    path: str | PathLike[str],
    link_gbps: float | None,
    what_if: list[str] | None,
) -> tuple[str, str, str]: ...
def check_program(
    path: str | PathLike[str] | None, text: str | None
) -> tuple[str, list[str]]: ...
