//! The result of a check as a readable report.

use sidestream::check::{Fix, Listed, Listing, Page, one_line};
use sidestream::op::OpId;

use crate::check::Checked;
use crate::program::Program;
use crate::write::written;

impl Checked {
    /// Returns the report of one program, or of the log of a run, which has no program: its name with a summary, and
    /// a paragraph for each race and each remark.
    pub fn page(&self, program: Option<&Program>) -> String {
        let text = program.map(|program| Text {
            program,
            checked: self,
        });
        let page = Page {
            report: &self.report,
            names: &self.names,
            sites: &self.sites,
            listing: text.as_ref().map(|text| text as &dyn Listing),
        };
        let name = one_line(&self.name);
        format!("{name}: {}\n{}", self.report.summary(), page.text())
    }
}

/// A program, listed as the text from which it was read.
struct Text<'a> {
    program: &'a Program,
    checked: &'a Checked,
}

impl Listing for Text<'_> {
    fn op(&self, id: OpId) -> Option<Listed> {
        let op = self.program.ops.get(id.0 as usize)?;
        let text = written(self.program, op);
        let call = text.strip_prefix("do: ").unwrap_or(&text).to_owned();
        Some(Listed {
            line: op.line,
            call,
        })
    }

    fn to_declare(&self, fix: &Fix) -> Vec<String> {
        let declare = self.checked.to_declare(fix);
        declare.into_iter().map(str::to_owned).collect()
    }
}
