# SPDX-License-Identifier: Apache-2.0
"""``python -m vllm_series``."""

from vllm_series.main import run

if __name__ == "__main__":
    run()
