"""The pictures: how large they are, how many classes, how many of them."""

PIXELS, CLASSES = 3 * 32 * 32, 10
TRAIN_PICTURES = {"cifar10": 50_000, "tiny": 520}  # tiny: 52 of each class
TEST_PICTURES = {"cifar10": 10_000, "tiny": 260}
HELD_OUT = {"cifar10": 5_000, "tiny": 100}  # the last training pictures, where a run is judged by validation pictures
