;; Is a component that imports `sandglass:integration/logs`.
;; The host rejects it, and names the function that it may mean.
(component
  (import "sandglass:integration/logs@0.1.0" (instance (export "write" (func (param "message" string))))))
