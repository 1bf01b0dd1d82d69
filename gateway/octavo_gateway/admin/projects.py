"""`/v1/organization/projects`: list, create, look, rename, archive."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from octavo.queue.tenants.keys import Project
from octavo_gateway.admin.access import AdminKeys, OwnProject, no_project
from octavo_gateway.admin.bodies import ProjectChange, ProjectRequest
from octavo_gateway.admin.objects import project_object
from octavo_gateway.errors import ApiError
from octavo_gateway.files.routes import page
from octavo_gateway.http.body import described, json_body

router = APIRouter(prefix="/v1/organization/projects", tags=["administration"])


@router.get("")
async def index(
    keys: AdminKeys,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    include_archived: bool = False,
) -> dict[str, Any]:
    """Projects, the oldest first; `after` is the last id of the previous page."""
    found = await keys.projects(limit=limit + 1, after=after, archived=include_archived)
    return page([project_object(project) for project in found[:limit]], has_more=len(found) > limit)


@router.post("", openapi_extra=described(ProjectRequest))
async def create(
    keys: AdminKeys, body: Annotated[ProjectRequest, Depends(json_body(ProjectRequest))]
) -> dict[str, Any]:
    """A new project. Its id is its tenant: `octavo.id` if that is given. `409` for one that there is."""
    made = await keys.create_project(body.name, body.octavo.id)
    if made is None:
        raise ApiError(409, "there is a project of this id already", code="project_exists", param="octavo.id")
    return project_object(made)


@router.get("/{project_id}")
async def show(project: OwnProject) -> dict[str, Any]:
    """One project."""
    return project_object(project)


@router.post("/{project_id}", openapi_extra=described(ProjectChange))
async def change(
    project: OwnProject, keys: AdminKeys, body: Annotated[ProjectChange, Depends(json_body(ProjectChange))]
) -> dict[str, Any]:
    """Rename a project."""
    if body.name is not None:
        await keys.rename_project(project.id, body.name)
    return project_object(await _again(keys, project))


@router.post("/{project_id}/archive")
async def archive(project: OwnProject, keys: AdminKeys) -> dict[str, Any]:
    """End a project for good: none of its keys is accepted any more. What it has stays for as long as it would."""
    await keys.archive(project.id)
    return project_object(await _again(keys, project))


async def _again(keys: AdminKeys, project: Project) -> Project:
    found = await keys.project(project.id)
    if found is None:
        raise no_project(project.id)
    return found
