;; Is a component whose `handle` takes nothing and answers nothing.
;; The host refuses it, and says what a handler is.
(component
  (core module $module (func (export "handle")))
  (core instance $instance (instantiate $module))
  (func $handle (canon lift (core func $instance "handle")))
  (export "handle" (func $handle)))
