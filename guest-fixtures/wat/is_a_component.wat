;; Is an empty component.
;; The host refuses it: it has no handler.
(component)
