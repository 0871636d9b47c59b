;; Is a component that wants a monotonic clock of 32 bits.
;; The host refuses it.
(component
  (import "wasi:clocks/monotonic-clock@0.2.0" (instance (export "now" (func (result u32)))))
  (core module $module (func (export "handle")))
  (core instance $instance (instantiate $module))
  (func $handle (canon lift (core func $instance "handle")))
  (export "handle" (func $handle)))
