"""HAR and MNIST in a few rows, in all their original forms, with fingerprints that fit."""

import gzip
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np

from edgemerge.paper.data import har, mnist
from edgemerge.paper.data.verified_files import Manifest, digest


def har_arrays(seed=0, train=9, test=5):
    rng = np.random.default_rng(seed)
    sizes = {"train": train, "test": test}
    X = {f"X_{half}": rng.uniform(-1, 1, (k, 561)).round(6) for half, k in sizes.items()}
    y = {f"y_{half}": np.arange(k) % 6 + 1 for half, k in sizes.items()}
    who = {f"subject_{half}": rng.integers(1, 31, k) for half, k in sizes.items()}
    return X | y | who


def har_texts(arrays):
    """Write the arrays as the makers do: CRLF and three digits of exponent among the features."""
    texts = {}
    for name in har.TEXTS:
        array = arrays[Path(name).stem]
        rows = array if array.ndim == 2 else array[:, None]
        show, end = ("{: .7e}", "\r\n") if array.ndim == 2 else ("{:d}", "\n")
        text = "".join(" ".join(map(show.format, row)) + end for row in rows)
        texts[name] = text.replace("e-", "e-0").replace("e+", "e+0").encode()
    return texts


def har_npz(arrays):
    """Pack the arrays as narrowly as the compact form does."""
    narrow = {"f": np.float32, "i": np.uint8, "O": object}
    file = BytesIO()
    np.savez_compressed(file, **{k: a.astype(narrow[a.dtype.kind]) for k, a in arrays.items()})
    return file.getvalue()


def har_known(arrays, compact=b"", addresses=()):
    texts = har_texts(arrays)
    kinds = {name: "git" if "X_" in name else "sha256" for name in texts}
    digests = {name: digest(data, kinds[name]) for name, data in texts.items()}
    return Manifest(digests | {har.COMPACT: digest(compact, "sha256")}, tuple(addresses))


def zipped(files):
    file = BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return file.getvalue()


def har_archive(arrays):
    """Pack the texts as the makers did, with the shadows of macOS."""
    texts = {f"UCI HAR Dataset/{name}": data for name, data in har_texts(arrays).items()}
    shadows = {f"__MACOSX/{name}": b"shadow" for name in texts}
    return zipped(texts | shadows | {"UCI HAR Dataset/README.txt": b"no commercial use"})


def har_wrapped(arrays):
    """Wrap the archive in another, as UCI does."""
    return zipped({"UCI HAR Dataset.zip": har_archive(arrays), "UCI HAR Dataset.names": b"names"})


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def mnist_files(seed=0, train=12, test=7):
    rng = np.random.default_rng(seed)
    files = {}
    for half, k in (("train", train), ("t10k", test)):
        files[f"{half}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (k, 28, 28)))
        files[f"{half}-labels-idx1-ubyte"] = idx(np.arange(k) % 10)
    return files


def packed(files):
    return {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}


def mnist_known(files, addresses=()):
    every = files | packed(files)
    digests = {name: digest(data, "sha256") for name, data in every.items()}
    assert set(digests) == set(mnist.MANIFEST.digests)
    return Manifest(digests, tuple(addresses))


def put(folder, files):
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder
