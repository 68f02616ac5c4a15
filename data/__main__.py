"""Show the worked examples, as `softkv demo` does. Run: python -m softkv_examples."""

from softkv_cli.demonstration import demo

if __name__ == "__main__":
    demo(prog_name="python -m softkv_examples")
