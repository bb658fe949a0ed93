//! The tests of stream programs, as one program: each crate that it uses is linked once.

mod checker_broken;
mod checker_oracle;
mod driver_calls;
mod exhaustive;
mod fixes;
mod format;
mod format_random;
mod litmus;
mod on_device;
mod oracle;
mod oracle_coverage;
mod oracle_litmus;
mod oracle_self;
mod order_oracle;
mod patterns;
mod readings;
mod reduce;
mod rules;
mod schedules;
