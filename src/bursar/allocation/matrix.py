"""Demand as the caller has it, dense or sparse, checked and brought into the kernels' form.

SciPy's arrays are recognised by their methods: whoever passes one has SciPy, nobody else needs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bursar.allocation import kernels
from bursar.errors import UsageError

Whole = npt.NDArray[np.int64]
VALUE_MAX = kernels.VALUE_MAX


@dataclass(frozen=True, slots=True)
class Rows:
    """A tenants x servers matrix of whole numbers, by rows; its arrays are its own."""

    shape: tuple[int, int]
    indptr: npt.NDArray[np.uint64]
    indices: npt.NDArray[np.uint32]
    values: Whole
    form: Any = None
    """The caller's sparse class, which may be this one; None for a dense array."""

    def express(self, values: Whole) -> Any:
        """The same cells with other values, in the caller's form."""
        if self.form is None:
            dense = np.zeros(self.shape, np.int64)
            kernels.unpack_rows(self.indptr, self.indices, values, dense)
            return dense
        if self.form is Rows:
            return self.with_values(values)
        indptr = self.indptr.astype(np.int32 if self.indices.size < 2**31 else np.int64)
        return self.form((values, self.indices.view(np.int32), indptr), shape=self.shape)

    def with_values(self, values: Whole) -> Rows:
        return Rows(self.shape, self.indptr, self.indices, values, self.form)

    def row_of_cells(self) -> Whole:
        return np.repeat(np.arange(self.shape[0]), np.diff(self.indptr).astype(np.int64))


def read_rows(name: str, matrix: Any) -> Rows:
    """Copy a CSR or dense matrix; take Rows as they are. Values and order of the cells are checked by
    the split."""
    if isinstance(matrix, Rows):
        return matrix
    if hasattr(matrix, "tocsr"):
        return _read_sparse(name, matrix)
    dense = np.asarray(matrix)
    if dense.ndim != 2:
        raise UsageError(f"{name} has {dense.ndim} dimensions: pass tenants x servers")
    whole = np.ascontiguousarray(make_whole(name, dense))
    indptr = np.empty(whole.shape[0] + 1, np.uint64)
    kernels.count_filled(whole, indptr)
    cells = int(indptr[-1])
    indices, values = np.empty(cells, np.uint32), np.empty(cells, np.int64)
    kernels.pack_rows(whole, indptr, indices, values)
    return Rows((whole.shape[0], whole.shape[1]), indptr, indices, values)


def _read_sparse(name: str, matrix: Any) -> Rows:
    if matrix.format != "csr" or matrix.ndim != 2:
        raise UsageError(f"{name} is a sparse {matrix.ndim}-d {matrix.format} array: pass {name}.tocsr()")
    tenants, servers = matrix.shape
    if servers >= 2**31:
        raise UsageError(f"{name} has {servers} columns: at most {2**31 - 1} servers are possible")
    indptr = matrix.indptr.astype(np.uint64)
    if indptr.size != tenants + 1 or indptr[0] != 0 or int(indptr[-1]) > matrix.data.size:
        raise UsageError(f"{name} is not a valid CSR array: its indptr does not fit its shape and data")
    if matrix.indices.size < int(indptr[-1]) or (indptr[1:] < indptr[:-1]).any():
        raise UsageError(f"{name} is not a valid CSR array: its indptr falls or exceeds its indices")
    cells = int(indptr[-1])
    indices = np.array(matrix.indices[:cells], dtype=np.int32)
    values = np.array(make_whole(name, matrix.data[:cells]), copy=True)
    return Rows((tenants, servers), indptr, indices.view(np.uint32), values, type(matrix))


def read_vector(name: str, values: Any, size: int, of: str) -> Whole:
    """One whole number from zero to VALUE_MAX for each of `size` tenants or servers."""
    vector = np.asarray(values)
    if vector.shape != (size,):
        raise UsageError(f"{name} has shape {vector.shape}: pass one number for each of {size} {of}")
    whole = np.array(make_whole(name, vector), copy=True)
    if size and (whole.min() < 0 or whole.max() > VALUE_MAX):
        at = int(np.flatnonzero((whole < 0) | (whole > VALUE_MAX))[0])
        raise UsageError(f"{name}[{at}] is {whole[at]}: pass whole numbers from 0 to 2**53")
    return whole


def make_whole(name: str, values: npt.NDArray[Any]) -> Whole:
    """As int64 without loss, or a UsageError that says where it is not possible."""
    kind = values.dtype.kind
    if values.dtype == np.int64:
        return values
    if kind in "ib":
        return values.astype(np.int64)
    if kind == "u":
        bad = values > np.uint64(VALUE_MAX)
    elif kind == "f":
        bad = ~(np.abs(values) <= VALUE_MAX) | (values != np.rint(values))
    else:
        raise UsageError(f"{name} holds {values.dtype}: pass whole numbers, for example dtype int64")
    if bad.any():
        at = tuple(int(k) for k in np.argwhere(bad)[0])
        where = at[0] if len(at) == 1 else at
        raise UsageError(f"{name} at {where} is {values[at]}: pass whole numbers from 0 to 2**53")
    return values.astype(np.int64)
