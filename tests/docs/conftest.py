import pytest

from tests.docs.commands import copied


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return copied(tmp_path_factory.mktemp("clone"))
