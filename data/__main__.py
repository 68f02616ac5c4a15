"""Shows the store with the worked example `car`: add, exact get, reopen. Run: python -m softkv_examples."""

import json
import os
import tempfile

import numpy as np

from softkv.storage import Store

from . import example


def main() -> None:
    """Make a store in a temporary folder, close it, open it again, and say what is done."""
    car = json.loads((example("car") / "car.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "car.softkv")
        print("Eight features, each with a key vector and a number: how much it says that a thing is a car.")
        with Store.open(path, "c") as store:
            store.append(np.diag(car["keys"]), car["values"], keys=car["features"])
            print(f"  added {len(store)} items, durable at commit {store.commit}")
        with Store.open(path) as store:
            print(f"  reopened: {store.get('radiator grill').name} -> {store.get('radiator grill').value}")
            print(f"  in order: {', '.join(store.keys())}")
        with Store.open(path, "w") as store:
            store.append(np.eye(1, 8, 6), [0.55], keys=["radiator grill"], on_conflict="replace")
            store.delete("handlebars")
            print(
                f"  replaced one, deleted one: {len(store)} left, radiator grill -> {store.get('radiator grill').value}"
            )
            print(f"  {store.check()}".replace(path, "check"))


if __name__ == "__main__":
    main()
