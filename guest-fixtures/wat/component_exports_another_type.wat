;; Is a component whose `handle` takes nothing and returns nothing.
;; The host rejects it, and states what a handler is.
(component
  (core module $module (func (export "handle")))
  (core instance $instance (instantiate $module))
  (func $handle (canon lift (core func $instance "handle")))
  (export "handle" (func $handle)))
