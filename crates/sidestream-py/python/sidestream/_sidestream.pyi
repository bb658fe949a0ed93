"""What the package asks of its extension module."""

from os import PathLike

__version__: str

class TraceError(ValueError): ...
class ProgramError(ValueError): ...

def diagnose(
    path: str | PathLike[str],
    link_gbps: float | None,
    what_if: list[str] | None,
) -> str: ...
def check_program(
    path: str | PathLike[str] | None, text: str | None
) -> tuple[str, list[str]]: ...
