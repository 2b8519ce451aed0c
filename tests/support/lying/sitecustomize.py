"""Change `fedbeyond.flower.node` when it is imported; Python imports this file when it starts, before anything else."""

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec


class Changed(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "fedbeyond.flower.node":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        load = spec.loader.exec_module

        def changed(module):
            from lies import corrupt

            load(module)
            corrupt(module)

        spec.loader.exec_module = changed
        return spec


sys.meta_path.insert(0, Changed())
