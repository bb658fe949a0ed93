//! Random programs through the safe API, and the model that they are compared with.
//!
//! A seed gives a [`plan::Plan`] (the machine, the schedule, how often calls fail) and a list of [`act::Act`]s.
//! [`world::World`] executes them twice: with the runtime, and on plain vectors in the order of the calls.
//! [`faults::Faults`] is between the runtime and the simulated machine: it refuses calls, counts them and records
//! what was created and destroyed. [`watch::Watch`] listens, with the checker. [`stuck`] ends a test that hangs.

pub mod act;
pub mod dice;
pub mod edge_act;
pub mod faults;
pub mod flying;
pub mod graph_act;
pub mod hold;
pub mod plan;
pub mod reference;
pub mod run;
pub mod stuck;
pub mod watch;
pub mod world;
