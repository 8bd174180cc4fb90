"""Classes that show an attribute in another way than by its name: as an item, in a comparison, as text."""

from __future__ import annotations

import types

from capturekit.functions.ownership import Ownership
from capturekit.functions.readable_state import is_pythons
from capturekit.functions.understood import module_of
from capturekit.model.class_layout import MISSING, bases_of, dictionary_of_class, made_by_class_statement

#: Classes written in C that compare and show all attributes.
_SHOWING = (types.SimpleNamespace,)
#: These show an attribute only by its name, whatever they are written in. So do the types of the module typing, where
#: nobody keeps values.
_BY_NAME = (types.ModuleType, types.FunctionType, type, BaseException)


def shows_by_name(cls: type, name: str, ownership: Ownership) -> bool:
    """Whether what code puts into an attribute of an instance is seen only by code that names the attribute.

    The user's own ``__setattr__`` is code that runs, and so is seen by itself.
    """
    if issubclass(cls, _BY_NAME) or module_of(cls) == 'typing':
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
        found = inside.get(name, MISSING)
        kept = type(found) is types.MemberDescriptorType or not hasattr(type(found), '__set__')
        if found is not MISSING and not kept and type(found) is not property:
            return False
    return True
