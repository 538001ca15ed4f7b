"""The segment decoder under atheris: `python tests/fuzz/fuzz_segment.py -runs=20000`."""

from coverage_guided import fuzz

if __name__ == "__main__":
    fuzz("segment")
