"""A small template language."""

from stencil.parser import Template, TemplateError

__all__ = ["Template", "TemplateError"]
