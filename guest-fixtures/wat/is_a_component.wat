;; Is an empty component.
;; The host rejects it: it has no handler.
(component)
