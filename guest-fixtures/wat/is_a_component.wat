;; Is a component, not a core module.
;; The host refuses it, and says why.
(component)
