"""The envelope decoder under atheris: `python tests/fuzz/fuzz_envelope.py -runs=20000`."""

from coverage_guided import fuzz

if __name__ == "__main__":
    fuzz("envelope")
