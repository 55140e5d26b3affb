"""Exact ranks of features, where they lie."""

import json

from . import _native

FORMATS = ("float32", "float16", "bfloat16")


def retrieval(
    queries,
    gallery,
    pairs=None,
    *,
    ties="mean",
    positives="best",
    at=(1, 5, 10),
    top=0,
    memory=None,
    threads=None,
    device="cpu",
):
    """Ranks both ways, as `holdall retrieval --json` has them; exact whatever the number of threads.

    `queries` and `gallery` are rows of float32, float16 or (torch) bfloat16: numpy arrays, torch tensors on the CPU, or anything with
    `__array_interface__`. They are read where they lie. Row i of one belongs to row i of the other unless `pairs` has (query, gallery)
    rows. `top` asks for that many nearest gallery items of each query: `neighbours` and `scores` of the answer. `memory` bounds, in
    bytes, what is held beside the features.
    """
    choice("ties", ties, ("mean", "optimistic", "pessimistic"))
    choice("positives", positives, ("best", "recall"))
    choice("device", device, ("cpu", "cuda"))
    # Both are held until the ranks are there: the addresses are theirs.
    queries, queries_at = described("queries", queries)
    gallery, gallery_at = described("gallery", gallery)
    if pairs is not None:
        pairs = [(int(query), int(item)) for query, item in pairs]
    ranks, nearest = _native.rank_arrays(
        queries_at, gallery_at, pairs, ties, positives, list(at), top, memory, threads, device
    )
    del queries, gallery
    answer = json.loads(ranks)
    if nearest is not None:
        import numpy

        shape = (queries_at[1], -1)
        answer["neighbours"] = numpy.frombuffer(nearest[0], numpy.uint32).reshape(shape)
        answer["scores"] = numpy.frombuffer(nearest[1], numpy.float32).reshape(shape)
    return answer


def choice(name, value, allowed):
    if value not in allowed:
        raise ValueError(f"{name}: expected one of {', '.join(allowed)}, found {value!r}")


def described(name, array):
    """Something to hold on to, and (address, rows, width, format) of its memory."""
    if hasattr(array, "data_ptr"):
        return array, of_tensor(name, array)
    if not hasattr(array, "__array_interface__"):
        raise TypeError(f"{name}: expected a numpy array or a torch tensor, found {type(array).__name__}")
    interface = array.__array_interface__
    formats = {"<f4": "float32", "<f2": "float16"}
    kind = formats.get(interface["typestr"])
    shape, strides = interface["shape"], interface.get("strides")
    check(name, kind, getattr(array, "dtype", interface["typestr"]), shape, strides is None)
    return array, (interface["data"][0], *shape, kind)


def of_tensor(name, tensor):
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: expected a tensor on the CPU, found one on {tensor.device}; .cpu() copies it")
    kind = str(tensor.dtype).removeprefix("torch.")
    check(name, kind if kind in FORMATS else None, kind, tuple(tensor.shape), tensor.is_contiguous())
    return (tensor.data_ptr(), *tensor.shape, kind)


def check(name, kind, found, shape, contiguous):
    if kind is None:
        raise TypeError(f"{name}: expected {', '.join(FORMATS)}, found {found}; .astype('float32') makes a copy that is taken")
    if len(shape) != 2:
        raise ValueError(f"{name}: expected [rows, values], found a shape of {tuple(shape)}")
    if not contiguous:
        raise ValueError(f"{name}: expected rows one behind the other, found strides; numpy.ascontiguousarray makes a copy that is taken")
