"""The compiler of loops: numba. Imported only where a loop is not in the cache yet, or numba's to call.

Layer: shared, for `globalstep.runtime.kernels` alone. Importing this module imports numba: half a second, and 50 MB.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba.extending import typeof_impl
from numba.np.arrayobj import populate_array

from globalstep.runtime.kernels import ENTRY, Kernel

#: Of the C library and its part for mathematics, which are in every process.
_IN_EVERY_PROCESS = frozenset({"memcpy", "memmove", "memset", "pow", "powf", "sqrt", "sqrtf"})
#: What a result may be, by its annotation.
_RESULTS = {"None": numba.void, "bool": numba.boolean, "int": numba.int64}
_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


@functools.cache
def dispatcher(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a loop that numba calls, and keeps in its own cache."""
    return numba.njit(function, cache=True, **_OPTIONS)  # type: ignore[no-any-return]


@typeof_impl.register(Kernel)
def _type_of_kernel(kernel: Kernel, context: Any) -> Any:
    """Let a loop call another of its file."""
    return numba.typeof(_within(kernel.function))


@functools.cache
def _within(function: Callable[..., Any]) -> Any:
    """Give a loop as it is called from compiled code; numba's types refer to it, but do not hold it."""
    return numba.njit(function, **_OPTIONS)


def machine_code(function: Callable[..., Any], kinds: Sequence[Any], result: str) -> bytes:
    """Compile a loop to machine code that needs nothing of numba where it runs.

    It is a C function. It takes an array as the address of numpy's object, whose fields it reads: so a call costs no
    more than numba's. Arrays need not be aligned.

    Returns:
        An object file with the function `ENTRY`; empty where the code may raise an error, or calls numba or Python.

    Raises:
        ValueError: If the result is not as it is annotated.
    """
    types = tuple([_type(kind) for kind in kinds])
    loop = _within(function)
    loop.compile(types)
    compiled = loop.overloads[types]
    if compiled.signature.return_type != _RESULTS[result]:
        raise ValueError(f"its result is annotated as {result}, and is {compiled.signature.return_type}")
    module = llvm.parse_assembly(compiled.library.get_llvm_str())
    module.link_in(llvm.parse_assembly(_entry(compiled)))
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
        codemodel="jitdefault",
    )
    # All but the entry is its alone, so the optimizer sees whether anything in it can fail.
    for item in [*module.functions, *module.global_variables]:
        if not item.is_declaration and item.name != ENTRY:
            item.linkage = "internal"
    passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=3))
    passes.getModulePassManager().run(module, passes)
    if not _called(module) <= _IN_EVERY_PROCESS:
        return b""
    code: bytes = target.emit_object(module)
    return code


def _type(kind: Any) -> Any:
    if isinstance(kind, tuple):
        dtype, dimensions = kind
        return numba.types.Array(numba.from_dtype(dtype), dimensions, "C", aligned=False)
    return numba.from_dtype(np.dtype(kind))


def _entry(compiled: Any) -> str:
    """Give the C function that calls a compiled loop, in LLVM's language."""
    context, types = compiled.target_context, compiled.fndesc.argtypes
    module = ir.Module(ENTRY)
    # C has no type of one bit.
    byte, address = ir.IntType(8), context.get_value_type(numba.types.voidptr)
    of_type = {numba.boolean: byte, numba.void: ir.VoidType()}
    kinds = [
        address if isinstance(of, numba.types.Array) else of_type.get(of) or context.get_value_type(of) for of in types
    ]
    result = compiled.signature.return_type
    returned = of_type.get(result) or context.get_value_type(result)
    entry = ir.Function(module, ir.FunctionType(returned, kinds), ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    arguments = []
    for of, argument in zip(types, entry.args, strict=True):
        if isinstance(of, numba.types.Array):
            argument = _array(context, builder, of, argument)
        elif of == numba.boolean:
            argument = builder.trunc(argument, ir.IntType(1))
        arguments.append(argument)
    loop = context.declare_function(module, compiled.fndesc)
    status, value = context.call_conv.call_function(builder, loop, compiled.fndesc.restype, types, arguments)
    with builder.if_then(status.is_error, likely=False):
        # There is no such function: code that still calls it cannot be kept.
        builder.call(ir.Function(module, ir.FunctionType(ir.VoidType(), []), "raise_error"), [])
    if returned == ir.VoidType():
        builder.ret_void()
    else:
        builder.ret(builder.zext(value, byte) if result == numba.boolean else value)
    for name in ("NRT_incref", "NRT_decref"):
        # numba counts who holds an array of its own; here are none.
        count = ir.Function(module, ir.FunctionType(ir.VoidType(), [address]), name)
        ir.IRBuilder(count.append_basic_block()).ret_void()
    return str(module)


def _array(context: Any, builder: Any, of: Any, address: Any) -> Any:
    """Make an array of numba's of the address of one of numpy's."""
    word = context.get_value_type(numba.types.intp)

    def words(begin: Any, first: int, count: int) -> list[Any]:
        return [builder.load(builder.gep(begin, [ir.Constant(word, first + i)])) for i in range(count)]

    # An array's fields: the two words of every object of Python's, the data, the number of dimensions, those.
    data, _, dimensions = words(builder.bitcast(address, word.as_pointer()), 2, 3)
    shape = words(builder.inttoptr(dimensions, word.as_pointer()), 0, of.ndim)
    itemsize = ir.Constant(word, context.get_abi_sizeof(context.get_data_type(of.dtype)))
    strides = [itemsize]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    array = context.make_array(of)(context, builder)
    data = builder.inttoptr(data, array.data.type)
    populate_array(array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None)
    return array._getvalue()


def _called(module: Any) -> set[str]:
    """Give the names of the functions outside of a module that are called in it."""
    defined = {function.name for function in module.functions if not function.is_declaration}
    called = {
        list(instruction.operands)[-1].name
        for function in module.functions
        for block in function.blocks
        for instruction in block.instructions
        if instruction.opcode in ("call", "invoke")
    }
    return {name for name in called - defined if not name.startswith("llvm.")}
