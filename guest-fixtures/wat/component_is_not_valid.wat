;; Is a component that instantiates a module which it has not.
;; The host rejects it, and states where it is wrong.
(component
  (core module $module (import "a" "b" (func)))
  (core instance (instantiate $module)))
