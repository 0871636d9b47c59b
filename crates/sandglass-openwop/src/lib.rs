//! An OpenWOP host over a Sandglass runtime: workflow runs are entities of it, their bounds
//! are limits of their sessions, and their events are a projection of its records.

