"""From a request to token ids: templates, their fences, the forms of answers, grammars of calls."""
