;; Is a component that imports the function `noww` of a clock.
;; The host rejects it, and names the function that it may mean.
(component
  (import "wasi:clocks/wall-clock@0.2.0" (instance (export "noww" (func (result u64))))))
