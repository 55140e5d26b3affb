"""`python -m holdall` is `holdall`."""

import os
import subprocess
import sys

from .commands import program


def main():
    words = [program(), *sys.argv[1:]]
    if os.name == "posix":
        os.execv(words[0], words)
    sys.exit(subprocess.call(words))


if __name__ == "__main__":
    main()
