"""Scripts that call released projects as docs/found.md lists them: each has a function ``step``.

    RELEASE=FOLDER python -m sidestream.check --simulate crates/sidestream-py/benches/found/SCRIPT.py
    RELEASE=FOLDER python -m sidestream.check --provoke 20 crates/sidestream-py/benches/found/SCRIPT.py

Install the project at the version in question. Scripts that import ``alone`` load one module of it instead,
unchanged, from the folder that RELEASE names.
"""
