"""Errors that mean a lost peer."""

import pytest
import torch.distributed as dist

from stallwise.elastic._rendezvous import peer_lost


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:535] Connection closed by peer [127.0.0.1]:1"), True),
        (dist.DistStoreError("Timed out after 61 seconds waiting for clients. 1/2 clients joined."), True),
        (dist.DistNetworkError("The client socket has failed to connect"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("gloo"), False),
    ],
)
def test_what_says_that_a_peer_is_gone(error: Exception, lost: bool) -> None:
    assert peer_lost(error) == lost
