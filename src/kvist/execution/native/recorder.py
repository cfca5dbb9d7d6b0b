"""Records a model's operations once into a native plan, fusing what the kernels can do in one pass.

A handle is a node of an expression; nothing is emitted until a consumer asks for it in the form it needs:
- linears that read the same input and are consumed together (q, k, v; gate, up) become one operation;
- a norm that feeds quantized linears leaves only its quantized rows, attention leaves them beside its own;
- gate, up, the activation and its quantized rows are one operation;
- a linear that is added to the residual stream accumulates into it;
- once the last layer's keys and values are written, only the rows from each request's first wanted logits on go on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvist.core.model_spec import LayerSpec, ModelSpec
from kvist.execution.kv_dtype import KVDtype
from kvist.execution.native import _native
from kvist.execution.native.packed_weights import KV_TYPES, Matrix, Weight
from kvist.execution.native.plan_description import Buffer
from kvist.execution.rope_frequencies import rope_frequencies
from kvist.models.ops import Split

ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
GROUP = 32  # activations that share a scale


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Float rows that exist: columns [column, column + width) of a buffer."""

    buffer: int
    column: int
    width: int


@dataclass(frozen=True, slots=True, eq=False)
class Normed:
    x: Node
    weight: NDArray[np.float32]
    eps: float
    head_dim: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """x @ weight.T + bias, not computed yet."""

    x: Node
    weight: Matrix
    bias: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True, eq=False)
class Rotated:
    x: Node
    rope_table: int


@dataclass(frozen=True, slots=True, eq=False)
class Gated:
    gate: Node
    up: Node
    kind: Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """`emit(q)` appends attention, with quantized rows too unless q is -1; returns the float rows it leaves."""

    emit: Callable[[int], Rows]
    has_whole_groups: bool  # in each KV head's part


Node = Rows | Normed | Product | Rotated | Gated | Attended


def _matrix(weight: Weight) -> Matrix:
    assert isinstance(weight, Matrix)
    return weight


def _experts(weight: Weight) -> tuple[Matrix, ...]:
    assert isinstance(weight, tuple)
    return weight


def _vector(weight: Weight) -> NDArray[np.float32]:
    assert isinstance(weight, np.ndarray)
    return weight


class PlanRecorder:
    """Implements Operations by appending to `body` (a native plan); `logits` appends to `head`."""

    def __init__(
        self,
        spec: ModelSpec,
        body: _native.Plan,
        head: _native.Plan,
        *,
        kv_dtype: KVDtype,
        has_integer_attention: bool,
        block_size: int,
    ) -> None:
        self._spec = spec
        self._body = body
        self._head = head
        self._kv_dtype = kv_dtype
        self._has_integer_attention = has_integer_attention
        self._block_size = block_size
        self._buffers: dict[tuple[int, str, int], int] = {}
        self._quantized: dict[tuple[int, str, int], int] = {}
        self._rope_tables: dict[LayerSpec, int] = {}
        self._qkv_buffer = -1
        self.residual_buffer = -1
        self.logits_buffer = -1

    # ---- the operations of models/ops.py ------------------------------------------------------------------------

    def embed(self, table: Weight, *, scale: float) -> Node:
        matrix = _matrix(table)
        rows = self._rows(self._body, "residual", matrix.width)
        self._body.embed(matrix.native(), scale, rows.buffer)
        self.residual_buffer = rows.buffer
        # The head reads the residual stream alone, so all else of the body may lie where logits will.
        self._body.borrow(self._head, self._rows(self._head, "logits", matrix.padded_outputs).buffer)
        return rows

    def rms_norm(self, x: Node, weight: Weight, *, eps: float, head_dim: int | None = None) -> Node:
        return Normed(x, _vector(weight), eps, head_dim)

    def linear(self, x: Node, weight: Weight, *, bias: Weight | None = None, split: Split) -> Node:
        return Product(x, _matrix(weight), None if bias is None else _vector(bias))

    def rope(
        self,
        x: Node,
        layer: LayerSpec,
        *,
        head_dim: int,
        interleaved: bool,
        frequency_divisors: Weight | None = None,
    ) -> Node:
        divisors = None if frequency_divisors is None else _vector(frequency_divisors)
        if layer not in self._rope_tables:
            frequencies = rope_frequencies(layer, head_dim, divisors)
            self._rope_tables[layer] = self._body.rope_angles(frequencies.astype(np.float64).tolist())
        return Rotated(x, self._rope_tables[layer])

    def attention(
        self, q: Node, k: Node, v: Node, *, layer_index: int, layer: LayerSpec, scale: float, softcap: float | None
    ) -> Node:
        assert isinstance(q, Rotated)
        assert isinstance(k, Rotated)
        spec = self._spec
        parts = [self._strip_head_norm(part) for part in (q.x, k.x, v)]
        half_bytes = spec.num_kv_heads * self._block_size * self._kv_dtype.vector_bytes(spec.head_dim)
        rope_table = q.rope_table
        is_last = layer_index == spec.num_layers - 1

        def emit(quantized: int) -> Rows:
            q_rows, k_rows, v_rows = self._heads(parts)
            if is_last:  # what is not finite after it shows in the logits, or is read by nobody
                self._body.check_finite(self.residual_buffer, spec.hidden_size)
            self._body.attention(
                q_rows.buffer,
                q_rows.column,
                k_rows.column,
                v_rows.column,
                q_rows.buffer,  # what is attended comes in their place
                quantized,
                2 * spec.num_layers * half_bytes,
                2 * layer_index * half_bytes,
                (2 * layer_index + 1) * half_bytes,
                KV_TYPES[self._kv_dtype.name],
                self._block_size,
                spec.num_q_heads,
                spec.num_kv_heads,
                spec.head_dim,
                layer.sliding_window or 0,
                scale,
                softcap or 0.0,
                rope_table,
                self._has_integer_attention,
                self.residual_buffer if is_last else -1,
            )
            return q_rows

        per_head = spec.num_q_heads // spec.num_kv_heads * spec.head_dim
        return Attended(emit, per_head % GROUP == 0)

    def _heads(self, parts: list[tuple[Product, Normed | None]]) -> list[Rows]:
        """q, k and v before rotation, each normed by heads where the model says so."""
        all_rows = self._products(self._body, [product for product, _ in parts], "qkv")
        self._qkv_buffer = all_rows[0].buffer
        for rows, (_, norm) in zip(all_rows, parts, strict=True):
            if norm is not None:
                head_dim = self._spec.head_dim
                heads = rows.width // head_dim
                self._body.norm(
                    rows.buffer, rows.column, norm.weight, norm.eps, head_dim, heads, rows.buffer, rows.column
                )
        return all_rows

    def gated_activation(self, gate: Node, up: Node, *, kind: Literal["silu", "gelu_tanh"]) -> Node:
        return Gated(gate, up, kind)

    def mixture_of_experts(  # noqa: PLR0913 - the operation's own parameters
        self,
        x: Node,
        *,
        router: Weight,
        gate: Weight,
        up: Weight,
        down: Weight,
        num_experts_per_token: int,
        normalize_top_k: bool,
        kind: Literal["silu", "gelu_tanh"],
    ) -> Node:
        gates, ups, downs = _experts(gate), _experts(up), _experts(down)
        plan = self._body
        scores = self._as_rows(plan, Product(x, _matrix(router), None), "router")
        is_quantized = all(self._takes_quantized(expert) for expert in (*gates, *ups))
        rows = self._as_quantized(plan, x, gates[0].width) if is_quantized else self._as_rows(plan, x, "experts").buffer
        out = self._rows(plan, "mixture", downs[0].padded_outputs)
        native_gates, native_ups, native_downs = (
            [expert.native() for expert in experts] for experts in (gates, ups, downs)
        )
        plan.mixture(
            rows,
            scores.buffer,
            native_gates,
            native_ups,
            native_downs,
            num_experts_per_token,
            normalize_top_k,
            ACTIVATIONS[kind],
            out.buffer,
        )
        return Rows(out.buffer, 0, downs[0].num_outputs)

    def add(self, x: Node, y: Node) -> Node:
        assert isinstance(x, Rows), "only the residual stream is added to"
        if isinstance(y, Product):
            self._product(self._body, y, x.buffer, x.column, accumulate=True)
        else:
            rows = self._as_rows(self._body, y, "summand")
            self._body.add(x.buffer, rows.buffer, x.width)
        return x

    def logits(self, x: Node, weight: Weight, *, softcap: float | None) -> None:
        assert isinstance(x, Normed)
        assert isinstance(x.x, Rows)
        assert x.x.buffer == self.residual_buffer
        matrix = _matrix(weight)
        gathered = self._rows(self._head, "gathered", x.x.width)
        self._head.gather(self._body, x.x.buffer, x.x.width, gathered.buffer)
        out = self._rows(self._head, "logits", matrix.padded_outputs)
        normed = Normed(gathered, x.weight, x.eps, None)
        self._product(self._head, Product(normed, matrix, None), out.buffer, 0, accumulate=False)
        self._head.best_logits(out.buffer, matrix.num_outputs, softcap or 0.0)
        self.logits_buffer = out.buffer

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The workspace recorded so far."""
        rows = [Buffer(role, "float32", width) for _, role, width in self._buffers]
        dtype = self._body.activation_dtype
        return (*rows, *(Buffer(role, dtype, width) for _, role, width in self._quantized))

    # ---- emission -----------------------------------------------------------------------------------------------

    @staticmethod
    def _strip_head_norm(node: Node) -> tuple[Product, Normed | None]:
        norm = node if isinstance(node, Normed) else None
        product = norm.x if norm is not None else node
        assert isinstance(product, Product)
        return product, norm

    def _takes_quantized(self, matrix: Matrix) -> bool:
        """Whether the kernels multiply it with quantized activations: packed weights, and some that are dense."""
        return self._body.takes_quantized(matrix.native())

    def _rows(self, plan: _native.Plan, role: str, width: int) -> Rows:
        """The plan's buffer for `role`; consumers are done with it before the next layer writes it."""
        key = (id(plan), role, width)
        if key not in self._buffers:
            self._buffers[key] = plan.buffer(width)
        return Rows(self._buffers[key], 0, width)

    def _as_quantized(self, plan: _native.Plan, node: Node, width: int) -> int:
        if isinstance(node, Gated):
            return self._gated_quantized(plan, node, width)
        out = self._quantized_rows(plan, "input", width)
        if isinstance(node, Normed) and node.head_dim is None:
            x = self._as_rows(plan, node.x, "normed_input")
            plan.norm_quantize(x.buffer, node.weight, node.eps, out)
        elif isinstance(node, Attended) and node.has_whole_groups:
            node.emit(out)
        else:
            rows = self._as_rows(plan, node, "unquantized")
            plan.quantize(rows.buffer, rows.column, out)
        return out

    def _quantized_rows(self, plan: _native.Plan, role: str, width: int, *, within: int | None = None) -> int:
        """As `_rows`, in place of the buffer `within`, if one is given, as far as that has room."""
        key = (id(plan), role, width)
        if key not in self._quantized:
            self._quantized[key] = plan.quantized(width) if within is None else plan.quantized_within(within, width)
        return self._quantized[key]

    def _gated_quantized(self, plan: _native.Plan, node: Gated, width: int) -> int:
        # Attention is done with q, k and v: what lies in their place is in the caches where they were.
        out = self._quantized_rows(plan, "gated", width, within=self._qkv_buffer)
        gate, up, kind = node.gate, node.up, ACTIVATIONS[node.kind]
        assert isinstance(gate, Product)
        assert isinstance(up, Product)
        are_quantized = self._takes_quantized(gate.weight) and self._takes_quantized(up.weight)
        if are_quantized and gate.weight.num_outputs == width:
            assert gate.x is up.x
            source = self._as_quantized(plan, gate.x, gate.weight.width)
            plan.gated_linear(gate.weight.native(gate.bias), up.weight.native(up.bias), source, kind, out)
        else:
            gate_rows, up_rows = self._gate_and_up(plan, node)
            plan.gated_quantize(gate_rows.buffer, gate_rows.column, up_rows.column, kind, out)
        return out

    def _as_rows(self, plan: _native.Plan, node: Node, role: str) -> Rows:
        if isinstance(node, Rows):
            return node
        if isinstance(node, Attended):
            return node.emit(-1)
        if isinstance(node, Product):
            out = self._rows(plan, f"{role}_product", node.weight.padded_outputs)
            self._product(plan, node, out.buffer, 0, accumulate=False)
            return Rows(out.buffer, 0, node.weight.num_outputs)
        if isinstance(node, Normed):
            x = self._as_rows(plan, node.x, f"{role}_input")
            out = self._rows(plan, f"{role}_normed", x.width)
            plan.norm(x.buffer, x.column, node.weight, node.eps, x.width, 1, out.buffer, 0)
            return out
        assert isinstance(node, Gated)
        gate, up = self._gate_and_up(plan, node)
        out = self._rows(plan, f"{role}_gated", gate.width)
        kind = ACTIVATIONS[node.kind]
        plan.gated(gate.buffer, gate.column, up.column, kind, gate.width, out.buffer, to_quantize=False)
        return out

    def _gate_and_up(self, plan: _native.Plan, node: Gated) -> list[Rows]:
        assert isinstance(node.gate, Product)
        assert isinstance(node.up, Product)
        return self._products(plan, [node.gate, node.up], "gate_up")

    def _products(self, plan: _native.Plan, products: list[Product], role: str) -> list[Rows]:
        """Compute linears of one input into neighbouring columns of one buffer."""
        assert all(product.x is products[0].x for product in products)
        columns = np.cumsum([0, *(product.weight.padded_outputs for product in products)]).tolist()
        out = self._rows(plan, role, columns[-1])
        quantized = [i for i, product in enumerate(products) if self._takes_quantized(product.weight)]
        if quantized:
            source = self._as_quantized(plan, products[0].x, products[quantized[0]].weight.width)
            natives = [products[i].weight.native(products[i].bias) for i in quantized]
            plan.linear(natives, [columns[i] for i in quantized], source, out.buffer, accumulate=False)
        if len(quantized) < len(products):
            x = self._as_rows(plan, products[0].x, "dense")
            for i, product in enumerate(products):
                if i not in quantized:
                    native = product.weight.native(product.bias)
                    plan.linear_dense(native, x.buffer, x.column, out.buffer, columns[i], accumulate=False)
        return [Rows(out.buffer, columns[i], product.weight.num_outputs) for i, product in enumerate(products)]

    def _product(self, plan: _native.Plan, product: Product, buffer: int, column: int, *, accumulate: bool) -> None:
        native = product.weight.native(product.bias)
        if self._takes_quantized(product.weight):
            source = self._as_quantized(plan, product.x, product.weight.width)
            plan.linear([native], [column], source, buffer, accumulate=accumulate)
        else:
            x = self._as_rows(plan, product.x, "dense")
            plan.linear_dense(native, x.buffer, x.column, buffer, column, accumulate=accumulate)
