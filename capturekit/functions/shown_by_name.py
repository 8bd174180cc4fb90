"""Classes that show an attribute in another way than by its name: as an item, in a comparison, as text."""

from __future__ import annotations

import functools
import types

from capturekit.functions.ownership import Ownership
from capturekit.functions.readable_state import is_pythons
from capturekit.functions.understood import module_of
from capturekit.model.class_layout import bases_of, dictionary_of_class, made_by_class_statement

#: Classes written in C that compare and show all attributes.
_SHOWING = (types.SimpleNamespace,)
#: These show an attribute only by its name, whatever they are written in. So do the types of the module typing, where
#: nobody keeps values.
_BY_NAME = (types.ModuleType, types.FunctionType, type, BaseException)


def shows_by_name(cls: type, name: str, ownership: Ownership) -> bool:
    """Whether what code puts into an attribute of an instance is seen only by code that names the attribute.

    The user's own ``__setattr__`` is code that runs, and so is seen by itself.
    """
    if issubclass(cls, _BY_NAME) or cls is functools.partial or module_of(cls) == 'typing':
        return True
    if issubclass(cls, _SHOWING):
        return False
    for base in bases_of(cls):
        if not made_by_class_statement(base):
            continue
        inside = dictionary_of_class(base)
        setter = inside.get('__setattr__')
        foreign = is_pythons(module_of(base)) or ownership.is_foreign_class(base)
        if setter is not None and (foreign or type(setter) is not types.FunctionType):
            return False
        if not _is_put_plainly(inside.get(name)):
            return False
    return True


def _is_put_plainly(member: object) -> bool:
    """Whether a member of a class lets an attribute of its name be put into instances, or is code that runs then."""
    if type(member) is property:
        return type(member.fset) in (types.FunctionType, type(None))
    return type(member) is types.MemberDescriptorType or not hasattr(type(member), '__set__')
