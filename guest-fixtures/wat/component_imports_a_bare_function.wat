;; Is a component that imports a function of no interface.
;; The host rejects it.
(component
  (import "host-log" (func (param "message" string))))
