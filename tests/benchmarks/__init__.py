"""Commands that measure. Each prints the machine and ratios taken in one run; none is part of the tests."""
