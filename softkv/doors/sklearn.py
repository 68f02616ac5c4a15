"""Soft lookup as scikit-learn estimators: a regressor, a classifier, and a transformer.

    regressor    the weighted mean of what the training items were: Nadaraya–Watson kernel regression, or, with a
                 projection, one whose kernel was learned and whose means may be read off planes
    classifier   the distribution over the labels of the training items, and how much is known about a query at all
    transformer  each vector becomes the weighted mean of the vectors it was fitted on that are like it

Fitted estimators hold items in memory, or on a given path as a store (held.py), which persists and can be opened by
other programs.

Does not import torch, and refuses sparse matrices: softkv compares all features.

Shapes: n samples, d features, p outputs, c classes.
"""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from softkv.answer import Answers
from softkv.asking.question import Compared
from softkv.database import SoftKV
from softkv.database.reader import Reader
from softkv.doors.held import Choices, InMemory, Items, OnDisk, require_kind
from softkv.doors.promising import PromisingLabels, PromisingNumbers
from softkv.errors import InputError, KindError, MissingExtra
from softkv.maths.inputs import is_whole
from softkv.ndarrays import AnyArray, Flags
from softkv.storage.disk.named import is_held, is_url

try:
    from sklearn.base import (
        BaseEstimator,
        ClassifierMixin,
        ClassNamePrefixFeaturesOutMixin,
        RegressorMixin,
        TransformerMixin,
    )
    from sklearn.utils import check_random_state
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
except ImportError as error:
    raise MissingExtra("softkv.doors.sklearn", package="scikit-learn", extra="sklearn") from error

FLOATS = (np.float64, np.float32)
HEAVIEST = 1e300  # all samples together, as sums of weighed squares have to be finite

Estimator = TypeVar("Estimator", bound="_SoftKV")


class _SoftKV(BaseEstimator):
    """The base class of the three estimators: their parameters and lookups."""

    _kinds: tuple[str, ...] = ()  # of the values that are predicted, in the words of a store
    _by_rule = False  # whether no item says what it should have been answered

    def __init__(
        self,
        *,
        compatibility: Compared = "gaussian",
        temperature: float | str = "auto",
        k: int | None = None,
        projection: bool = False,
        tolerance: float = 0.01,
        path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        random_state: Any = 0,
    ) -> None:
        self.compatibility = compatibility
        self.temperature = temperature
        self.k = k
        self.projection = projection
        self.tolerance = tolerance
        self.path = path
        self.overwrite = overwrite
        self.random_state = random_state

    def decision_evidence(self, X: Any) -> AnyArray:
        """How much is known about each sample, (n,): the log of the summed exp(score / temperature) of all items.

        Low where nothing that was learned is near; a threshold on it tells when to abstain.
        """
        found: AnyArray = self._asked(X).log_mass
        return found

    @property
    def temperature_(self) -> float:
        """What scores are divided by."""
        check_is_fitted(self)
        return self.held_.temperature

    def _asked(self, X: Any) -> Answers:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=FLOATS)
        return self.held_.ask(X, k=self.k, tolerance=self._tolerance)

    def _fitted_on(self, X: Any) -> Flags:
        """Which of the samples were fitted, (n,)."""
        return self.held_.holds(validate_data(self, X, reset=False, dtype=FLOATS))

    @contextmanager
    def _as_it_was_on_failure(self) -> Iterator[None]:
        """Fit, or stay fitted as before: checking samples already notes what is new of them."""
        before = self.__dict__.copy()
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _hold(self, items: Items, sample_weight: Any) -> None:
        way = self._way()
        if sample_weight is not None:
            # Subtle: log 0 is no number to add, and an item that counts nothing is no item.
            weights = _check_sample_weight(sample_weight, items.keys, dtype=np.float64)
            kept = weights > 0
            if (weights < 0).any() or not kept.any():
                raise InputError(
                    "expected weights of samples from 0 on, and some above it. Give 0 to what does not count."
                )
            if float(weights.max()) > HEAVIEST / len(weights):
                raise InputError(
                    f"expected weights of samples whose sum is below {HEAVIEST:g}, got some of {weights.max():g}. "
                    "Divide all of them by a number."
                )
            items = Items(items.keys[kept], items.values[kept], items.labels, weights[kept])
        self.held_: InMemory | OnDisk
        tolerance, overwrite = _tolerance(self.tolerance), _flag("overwrite", self.overwrite)
        if self.path is None:
            self.held_ = InMemory.of(items, way)
        else:
            self.held_ = OnDisk.of(items, way, _path(self.path), overwrite=overwrite)
        self._tolerance, self.n_items_ = tolerance, len(items.keys)
        self.__dict__.pop("guard_", None)  # it was about what was held before

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_items_")

    def _way(self) -> Choices:
        return Choices(
            self.compatibility,
            _temperature(self.temperature),
            _count(self.k),
            _flag("projection", self.projection),
            int(check_random_state(self.random_state).randint(1 << 31)),
            self._by_rule,
        )

    @classmethod
    def from_store(
        cls: type[Estimator],
        store: SoftKV | str | os.PathLike[str],
        *,
        temperature: float | str = "auto",
        k: int | None = None,
        tolerance: float = 0.01,
    ) -> Estimator:
        """An estimator that is fitted on what a store holds, of its kind, and compares as the store does."""
        if isinstance(store, Reader) and not isinstance(store, SoftKV):
            raise KindError(
                f"expected a store on this machine, open or by its path, got {type(store).__name__}. Give the "
                "directory of the store, since an estimator reads what is there now; export a served one, and load it."
            )
        path = store.path if isinstance(store, SoftKV) else _path(store)
        held = OnDisk.there(path, _temperature(temperature))
        db = held.db()
        require_kind(db, cls._kinds, cls.__name__)
        info = db.info()
        model = cls(
            compatibility=info.compatibility or "dot", temperature=temperature, k=k, tolerance=tolerance, path=path
        )
        model.projection = info.projection is not None
        model._way()
        model.held_, model._tolerance = held, _tolerance(tolerance)
        model.n_items_, model.n_features_in_ = info.items, info.key_width
        model._take_up(db)
        return model

    def _take_up(self, db: SoftKV) -> None:
        """What else is to be known of a store."""


class SoftKVRegressor(RegressorMixin, _SoftKV, PromisingNumbers):
    """Predict numbers, one or several, as the weighted mean of those of the training samples.

    >>> import numpy as np
    >>> from softkv.doors.sklearn import SoftKVRegressor
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = SoftKVRegressor().fit(X, np.sin(X[:, 0]))
    >>> bool(abs(model.predict([[1.0]])[0] - np.sin(1.0)) < 0.01)
    True

    Args:
        compatibility: How samples are compared: "gaussian", "laplace", "student", "cosine", "dot", "scaled_dot", or a
            function.
        temperature: What scores are divided by; for "gaussian" the bandwidth squared. "auto" leaves each training
            sample out and takes the temperature at which the others predict it best.
        k: Average only the k heaviest samples.
        projection: Learn by which directions samples differ in what is predicted, and compare by these, if samples
            that took no part are predicted better so. The temperature is part of what is learned.
        tolerance: How far off a prediction may be, as a share of the standard deviation of the targets, on a path with
            an index. In memory predictions are exact.
        path: Where a store is to be made of the samples. Otherwise they are held in memory.
        overwrite: Whether `fit` may erase a store that holds items already.
        random_state: Chooses the samples that are asked where there are more than 11,585, and those that judge a
            projection.
    """

    _kinds = "number", "vector"
    _column = False  # whether targets were a matrix of one column

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SoftKVRegressor":
        """Hold the samples (n, d) with their targets (n,) or (n, p); the log of a weight is added to the logit."""
        with self._as_it_was_on_failure():
            X, y = validate_data(self, X, y, dtype=FLOATS, multi_output=True, y_numeric=True)
            y = np.asarray(y, np.float64)
            self._hold(Items(X, y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y), sample_weight)
            self._column = y.ndim == 2 and y.shape[1] == 1
        return self

    def predict(self, X: Any) -> AnyArray:
        """The weighted means, (n,) or (n, p)."""
        found = np.asarray(self._asked(X).value, np.float64)
        return found[:, None] if self._column else found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags


class SoftKVClassifier(ClassifierMixin, _SoftKV, PromisingLabels):
    """Predict labels: each has the weight of the training samples that carry it.

    >>> from softkv.doors.sklearn import SoftKVClassifier
    >>> model = SoftKVClassifier(temperature=1.0).fit([[0.0], [1.0], [4.0]], ["low", "low", "high"])
    >>> model.predict([[3.0]]).tolist(), model.predict_proba([[3.0]]).round(2).tolist()
    (['high'], [[0.81, 0.19]])
    >>> bool(model.decision_evidence([[3.0]]) > model.decision_evidence([[30.0]]))
    True

    The parameters are those of `SoftKVRegressor`; "auto" minimises the log-loss.
    """

    _kinds = ("label",)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SoftKVClassifier":
        """Hold the samples (n, d) with their labels (n,); the log of a weight is added to the logit."""
        with self._as_it_was_on_failure():
            X, y = validate_data(self, X, y, dtype=FLOATS)
            check_classification_targets(y)
            classes, codes = np.unique(y, return_inverse=True)
            names = tuple(str(one) for one in classes.tolist())
            if len(set(names)) < len(names):
                raise KindError("expected labels that differ when they are written down. Rename them.")
            self._hold(Items(X, codes.astype(np.int32), names), sample_weight)
            self.classes_, self._names = classes, names
        return self

    def _take_up(self, db: SoftKV) -> None:
        self._names = tuple(sorted(db.columns().labels or ()))
        self.classes_ = np.array(self._names)

    def predict_proba(self, X: Any) -> AnyArray:
        """The weight of each class, (n, c), in the order of `classes_`."""
        answers = self._asked(X)
        return np.asarray(answers.value) if isinstance(self.held_, InMemory) else self._by_class(answers, answers.value)

    def predict(self, X: Any) -> AnyArray:
        """The most probable class of each sample, (n,)."""
        best = self.predict_proba(X).argmax(1)
        found: AnyArray = self.classes_[best]
        return found


class SoftKVTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _SoftKV):
    """Put vectors into context: each becomes the weighted mean of the vectors that it was fitted on.

    >>> import numpy as np
    >>> from softkv.doors.sklearn import SoftKVTransformer
    >>> middles = np.repeat([[0.0, 0.0], [9.0, 9.0]], 100, axis=0)
    >>> noise = np.random.default_rng(0).standard_normal((200, 2))
    >>> found = SoftKVTransformer(temperature=4.0).fit_transform(middles + noise)
    >>> bool(np.square(found - middles).mean() < np.square(noise).mean() / 10)
    True

    The parameters are those of `SoftKVRegressor`, but nothing says what a vector should become: there is no projection
    to learn, and "auto" is the temperature at which about ten vectors contribute.
    """

    projection, random_state = False, 0
    _kinds = ("vector",)
    _by_rule = True

    def __init__(
        self,
        *,
        compatibility: Compared = "gaussian",
        temperature: float | str = "auto",
        k: int | None = None,
        tolerance: float = 0.01,
        path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.compatibility = compatibility
        self.temperature = temperature
        self.k = k
        self.tolerance = tolerance
        self.path = path
        self.overwrite = overwrite

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> "SoftKVTransformer":  # noqa: ARG002
        """Hold the vectors (n, d)."""
        with self._as_it_was_on_failure():
            X = validate_data(self, X, dtype=FLOATS)
            self._hold(Items(X, X), sample_weight)
            self._n_features_out = X.shape[1]
        return self

    def _take_up(self, db: SoftKV) -> None:
        self._n_features_out = db.info().value_width

    def transform(self, X: Any) -> AnyArray:
        """What each vector becomes, (n, d)."""
        return np.asarray(self._asked(X).value)


def _temperature(given: Any) -> float | None:
    if isinstance(given, str) and given == "auto":
        return None
    if isinstance(given, (bool, str)) or not isinstance(given, (int, float, np.number)) or not 0 < given < math.inf:
        raise InputError(f"expected temperature to be a number above 0 or 'auto', got {given!r}.")
    return float(given)


def _count(given: Any) -> int | None:
    if given is None:
        return None
    if not is_whole(given) or given < 1:
        raise InputError(f"expected k to be None or a number of samples from 1 on, got {given!r}.")
    return int(given)


def _flag(name: str, given: Any) -> bool:
    if not isinstance(given, (bool, np.bool_)):
        raise InputError(f"expected {name} to be True or False, got {given!r}.")
    return bool(given)


def _tolerance(given: Any) -> float:
    if isinstance(given, (bool, str)) or not isinstance(given, (int, float, np.number)) or not 0 <= given < math.inf:
        raise InputError(f"expected tolerance to be a number from 0 on, got {given!r}.")
    return float(given)


def _path(given: Any) -> str:
    if not isinstance(given, (str, os.PathLike)):
        raise KindError(f"expected path to be a text or a Path, got {type(given).__name__}. Leave it out for memory.")
    if is_url(given) or is_held(given):
        raise InputError(f"expected path to be a store on this machine, got {given}. Give the directory of a store.")
    return os.fspath(given)
