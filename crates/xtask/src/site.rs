//! `cargo xtask site`: the documents as a site in the target folder, made by Sphinx from `docs`, with rustdoc's pages
//! beside it. Nothing is fetched once the environment exists.

use anyhow::{Context, Result, ensure};

use crate::cargo;
use crate::python::{self, Environment};

/// Makes the site and says where it is.
pub fn run() -> Result<bool> {
    let environment = Environment::of("python")?;
    environment.make(&python::version_of_python()?, &python::WITH_SITE)?;
    environment.install_package()?;
    let target = cargo::Workspace::read()?.target_dir;
    let site = target.join("site");
    python::clear(&site)?;
    let mut sphinx = environment.python(&["-m", "sphinx", "--quiet", "--fail-on-warning"]);
    // Sphinx's cache of an earlier site may refer to files that are gone.
    sphinx
        .args(["--fresh-env", "-d"])
        .arg(target.join("site-read"));
    sphinx.arg(cargo::root().join("docs")).arg(&site);
    ensure!(
        cargo::succeeds(sphinx)?,
        "Sphinx made no site; it says why above"
    );
    let library = ["doc", "--no-deps", "--lib", "--package", "sidestream"];
    ensure!(
        cargo::succeeds(cargo::command(&library))?,
        "`cargo doc` failed"
    );
    let pages = target.join("doc");
    std::os::unix::fs::symlink(&pages, site.join("rust"))
        .with_context(|| format!("cannot link {} into the site", pages.display()))?;
    println!("site: {}", site.join("index.html").display());
    Ok(true)
}
