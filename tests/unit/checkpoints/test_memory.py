import pytest

from runtime.checkpoints.memory import MemoryStore
from tests.support.stores import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self):
        return MemoryStore()
