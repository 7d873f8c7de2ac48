"""Shared by tests/ and tb/: the seed."""

import random

import pytest


def pytest_addoption(parser):
    parser.addoption("--seed", default="1", help="seed of vectors and stalls, or 'random'")
    parser.addoption("--testfloat", default=None, help="folder of Berkeley TestFloat vectors")
    parser.addoption("--seeded-only", action="store_true", help="only tests that use the seed")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--seeded-only"):
        unseeded = [item for item in items if "seed" not in getattr(item, "fixturenames", ())]
        items[:] = [item for item in items if item not in unseeded]
        config.hook.pytest_deselected(items=unseeded)


def pytest_configure(config):
    # Workers of pytest-xdist get the controller's seed through the option itself.
    if config.getoption("--seed") == "random":
        config.option.seed = str(random.SystemRandom().randrange(1, 2**31))


def pytest_report_header(config):
    return f"seed: {config.getoption('--seed')}"


@pytest.fixture(scope="session")
def seed(request) -> int:
    return int(request.config.getoption("--seed"))
