"""Contracts on masks: later tokens, padding, other rows of a batch, mask layouts."""

from collections.abc import Iterator

from attnkit.attention.mask import Mask
from attnkit.contract.subject import EXACT, Broken, Subject, close, gradients, inputs, no_padding, right_padded

LENGTHS = (1, 2, 7, 64, 65, 513)
PADS = 5


def future(subject: Subject) -> Iterator[float]:
    """Check that changes of later tokens do not change outputs, and that outputs have no gradient at later tokens."""
    for length in LENGTHS:
        x = inputs(1, length)
        general_mask = Mask.of(no_padding(1, length), length, causal=True)
        for mask in (general_mask, Mask.packed(length, x.device, causal=True)):
            # the last visible token is inside a block of any even size, not at its border
            for last in {length * 2 // 5} | ({length - 2} if 2 < length < 100 else set()):
                location = f"length {length}, layout {mask.layout}, after token {last}"
                after = last + 1
                x_leaf = x.clone().requires_grad_()
                y = subject.layer(x_leaf, mask).y[:, :after]
                (grad,) = gradients(y, [x_leaf])
                assert grad is not None
                largest = grad.abs().max().item()
                if largest == 0 and after == 1 and not subject.weights(x, mask)[:, :, 0].any():
                    continue  # the first token has no visible keys
                if largest == 0:
                    raise Broken(f"{location}: the outputs do not depend on any token")
                if after == length:
                    continue
                leak = grad[:, after:].abs().max().item() / largest
                if not leak <= EXACT:
                    text = f"later tokens have {leak:.2g} of the largest gradient instead of 0"
                    raise Broken(f"{location}: {text}", leak)
                changed = x.clone()
                changed[:, after:] = inputs(1, length - after) * 50
                yield leak
                yield close(subject.layer(changed, mask).y[:, :after], y, location)


def padding(subject: Subject) -> Iterator[float]:
    """Compare rows with random padding on the left, on the right and in between to rows without padding."""
    for length in (1, 7, 65):
        x, valid = inputs(3, length), no_padding(3, length + PADS)
        for row, first in enumerate((0, length, max(1, length // 2))):
            valid[row, first : first + PADS] = False
        longer = inputs(3, length + PADS) * 50
        longer[valid] = x.flatten(0, 1)
        results = []
        for rows, real in ((x, no_padding(3, length)), (longer, valid)):
            x_leaf = rows.clone().requires_grad_()
            y = subject.real_outputs(subject.layer, x_leaf, real)
            (gradient,) = gradients(y, [x_leaf])
            assert gradient is not None
            results.append((y.detach(), gradient))
        (plain, grad), (padded, padded_grad) = results
        location = f"length {length} and {PADS} pads"
        yield close(padded, plain, location)
        padding_grad = padded_grad[~valid]
        if not (padding_grad == 0).all():
            raise Broken(f"{location}: pads have a gradient", padding_grad.abs().max().item())
        yield close(padded_grad[valid], grad.flatten(0, 1), f"{location}: gradient")


def batch(subject: Subject) -> Iterator[float]:
    """Compare a batch of rows of different lengths to each row alone."""
    for length in (9, 70):
        x, valid = inputs(3, length), right_padded(length, length - 4, length)
        valid[2, :3] = False
        queries = inputs(3, 4)
        together = subject.output(subject.layer, x, valid, queries=queries)
        for row in range(3):
            index = slice(row, row + 1)
            alone = subject.output(subject.layer, x[index], valid[index], queries=queries[index])
            actual = subject.real_rows(together[index], valid[index])
            expected = subject.real_rows(alone, valid[index])
            yield close(actual, expected, f"length {length}, row {row}")


def layouts(subject: Subject) -> Iterator[float]:
    """Compare masks with the layouts `packed` and `right` to the general mask of the same rows."""
    for length in (11, 100):
        x, valid = inputs(3, length), right_padded(length, length // 3, length - 2)
        packed = Mask.packed(length, x.device, causal=subject.causal)
        masks = [(packed, no_padding(3, length))]
        masks.append((packed if subject.causal else Mask.right(valid), valid))
        for mask, real in masks:
            general = subject.output(subject.layer, x, real)[real]
            actual = subject.output(subject.layer, x, real, mask)[real]
            yield close(actual, general, f"length {length}, layout {mask.layout}")
