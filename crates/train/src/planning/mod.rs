//! From what was opened to where every byte goes.

pub(crate) mod digest;
pub mod disk_space;
pub mod loader_budget;
mod opened_run;
pub mod picture_costs;
pub mod plan_race;
pub mod plan_together;
pub mod planned_run;
pub mod prepare;
pub mod processes;
pub mod reserve;
pub mod setup;
pub mod site;
