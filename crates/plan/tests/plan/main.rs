//! The planner on toy graphs: what a plan computes, where its bytes lie, and which plan is chosen.

mod placing;
mod replay;
mod searching;
mod toy;
