"""``python -m sidestream``: the version, and what there is."""

from sidestream import __version__

print(f"sidestream {__version__}")
print("In Python: sidestream.diagnose(path) says why a GPU idled, sidestream.check_program(path) finds races.")
