"""Results are compared by their bits."""

import torch

from kernelproof import results


def test_results_that_differ_between_sets_are_both_handed_over() -> None:
    same, other = torch.zeros(4), torch.tensor([0.0, 0.0, -0.0, 0.0])
    assert [count for _, count in results.distinct([same, same.clone()])] == [2]
    found = results.distinct([same, other, same.clone()])
    assert [count for _, count in found] == [2, 1]
    assert found[1][0] is other
